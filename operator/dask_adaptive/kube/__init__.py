"""
The Platform and the Reporter that are Kubernetes; the only code that talks to its API.

JSON is parsed at this edge into frozen values (`objects`), kept in a `cache`, read as a `view`.
"""
