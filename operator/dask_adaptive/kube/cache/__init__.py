"""All that we watch, kept in step with the API server kind by kind and namespace by namespace."""
