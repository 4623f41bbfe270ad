"""What a compile did and what a partition is, as text and JSON."""
