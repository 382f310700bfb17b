"""What runs inside the detached broker actor: the core's hands and eyes on a Ray cluster."""
