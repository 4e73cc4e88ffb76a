FROM rust:1.95-bookworm AS build
WORKDIR /src
# Queries are checked against .sqlx, so that the build needs no database.
ENV SQLX_OFFLINE=true
COPY . .
# The caches stay on the building machine; the binary has to leave target/ within the same step.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --release --locked --bin forebay \
    && install -D target/release/forebay /out/forebay

FROM debian:bookworm-slim
# A pinned version of ca-certificates would be gone from the distribution with its next update.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /out/forebay /usr/local/bin/forebay
# A number, so that a cluster can see that it is not root. The server writes no files.
USER 10001:10001
ENV FOREBAY_LISTEN=0.0.0.0:8080
EXPOSE 8080
HEALTHCHECK --interval=5s --timeout=3s --start-period=30s --retries=3 CMD ["forebay", "healthcheck"]
ENTRYPOINT ["forebay"]
CMD ["serve"]
