"""The operator's process: kopf's watches, a task for each policy, lease, probes and webhook."""
