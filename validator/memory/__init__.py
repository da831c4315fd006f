"""Physics: an architecture and a workload in, bytes by term out. Knows no YAML key and no product."""
