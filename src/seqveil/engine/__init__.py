"""Making releases: policies, budgets, one user's session, many users' streams, and where state is kept."""
