"""The audit log: decisions, their hash chain, and their replay."""
