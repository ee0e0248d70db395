"""Keeps all watched objects in step with the API server, by kind and namespace."""
