"""Is the compiled model right? Compared with a reference, judged by what the model itself amplifies."""
