"""Making releases: settings, budgets, schedules, one user's session, many users' streams, and where state is kept."""
