"""What a workload is, read from its TIR: contractions, chains, blocks, and how tiles of them fit a machine."""
