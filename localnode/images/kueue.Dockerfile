FROM scratch
COPY manager /manager
USER 65532:65532
ENTRYPOINT ["/manager"]
