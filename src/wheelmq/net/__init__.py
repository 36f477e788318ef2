"""asyncio shells: they connect sockets to the pure cores."""
