# The static etcd that build.sh puts beside this file's context, and nothing else.
FROM scratch
COPY etcd /usr/local/bin/etcd
CMD ["/usr/local/bin/etcd"]
