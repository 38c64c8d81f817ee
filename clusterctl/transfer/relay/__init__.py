"""What runs on a host while clusterctl brings it blobs: sent over the SSH session, gone with it.

Python's standard library alone, and of that only what Debian's python3-minimal has: no json,
http, hmac, queue, shutil, socketserver. Any Python from 3.6 on runs it.
"""
