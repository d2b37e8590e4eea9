"""Every peer in the same run: one machine, one server, the same transactions and payloads."""
