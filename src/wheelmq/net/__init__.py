"""asyncio shells: sockets around the pure cores."""
