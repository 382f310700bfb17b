"""The page that shows who holds what, who waits and why: a process of its own over `Client`."""
