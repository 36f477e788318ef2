"""The broker: it serves requests and sends answers. Sockets and clocks are passed in."""
