"""A small cluster on one machine: racks, hosts and shaped links as network namespaces; see `meshwright lab`."""
