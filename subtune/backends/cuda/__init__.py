"""NVIDIA GPUs: device model, families of schedules, compiler, timing, and how a program runs."""
