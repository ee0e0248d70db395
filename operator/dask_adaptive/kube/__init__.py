"""
Implements Platform and Reporter for Kubernetes; the only code that calls its API.

JSON is parsed at this edge into frozen values (`objects`), kept in a `cache`, read as a `view`.
"""
