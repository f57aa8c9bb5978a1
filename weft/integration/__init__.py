"""Integration: torch.compile's backend and weft.fuse."""
