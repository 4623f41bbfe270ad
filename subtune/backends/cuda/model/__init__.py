"""What several families use to predict the time of a kernel."""
