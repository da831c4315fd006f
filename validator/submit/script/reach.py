"""Prints the address that this node uses to reach another node, the argument. Nothing is sent over the network."""

import socket
import sys

way = socket.getaddrinfo(sys.argv[1], 29500, type=socket.SOCK_DGRAM)[0]
end = socket.socket(*way[:3])
end.connect(way[4])
sys.stdout.write(f"{end.getsockname()[0]}\n")
