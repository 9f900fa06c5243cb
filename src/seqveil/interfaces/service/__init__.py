"""The service: releases over HTTP, each on the disk before it is answered (`seqveil serve`, docs/service.md)."""
