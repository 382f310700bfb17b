"""What user code imports: clients, leases, and the decorator."""
