"""Code that runs in workers and in their pods."""
