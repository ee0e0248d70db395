"""Steps of every drain: take a worker out of service, move its tasks, copy its data."""
