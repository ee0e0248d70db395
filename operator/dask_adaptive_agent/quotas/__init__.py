"""Quotas that the scheduler itself keeps: runs, failures, ends of workers."""
