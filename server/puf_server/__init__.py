"""The aggregation server: a pure core, a store, and a thin gRPC service around them. Serving imports no torch."""
