"""The way of a worker out of service."""
