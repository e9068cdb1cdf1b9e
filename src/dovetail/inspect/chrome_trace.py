def trace_events(e): return []
