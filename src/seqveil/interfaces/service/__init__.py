"""The service: releases over HTTP, each on the disk before it is answered (`seqveil serve`, docs/service.md).

It needs the extra `serve`. Raw symbols come in with a request, go to the store, and are in no log line, metric or
answer.
"""
