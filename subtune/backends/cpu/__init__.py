"""CPUs through LLVM: device model, families of schedules, lowering, timing."""
