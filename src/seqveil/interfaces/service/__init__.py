"""The service: releases over HTTP, each on the disk before it is answered (`seqveil serve`, docs/http.md).

`seqveil.interfaces.service.app.create_app` makes the FastAPI application; it needs the extra `serve`, which nothing
else in the package does. Raw symbols come in with a request, go to the store, and are in no log line, metric or answer.
"""
