"""The search: candidates measured within a budget, alternatives chosen, op level compared with subgraphs."""
