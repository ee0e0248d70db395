"""Reads messages from the operator and from clients, and answers them."""
