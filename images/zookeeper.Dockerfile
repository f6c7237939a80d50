# ZooKeeper from the distribution's package. Like the official image it reads
# /conf/zoo.cfg and takes flags for java from JVMFLAGS.
ARG BASE=debian:bookworm-slim
FROM ${BASE}
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends zookeeper default-jre-headless \
 && rm -rf /var/lib/apt/lists/* && mkdir -p /data /conf
WORKDIR /data
CMD ["/bin/sh", "-c", "exec java $JVMFLAGS -Dorg.slf4j.simpleLogger.defaultLogLevel=warn -cp /usr/share/java/zookeeper.jar:/usr/share/java/slf4j-simple.jar org.apache.zookeeper.server.quorum.QuorumPeerMain /conf/zoo.cfg"]
