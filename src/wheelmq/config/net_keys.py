"""Keys of Apache RocketMQ 5.3.3's NettyServerConfig and NettyClientConfig, of broker and name server alike."""

from __future__ import annotations

from typing import Final

from wheelmq.config.keys import Kind, honoured, no_effect

BOOLEAN, INT, LONG, TEXT = Kind.BOOLEAN, Kind.INT, Kind.LONG, Kind.TEXT

_NETTY: Final = "WheelMQ does not use Netty"
_SERVERS: Final = "the broker only connects to name servers, with one connection each"

SERVER_KEYS: Final = (
    honoured("bindAddress", TEXT, "0.0.0.0"),
    no_effect("serverWorkerThreads", INT, "8", _NETTY),
    no_effect("serverCallbackExecutorThreads", INT, "0", _NETTY),
    no_effect("serverSelectorThreads", INT, "3", _NETTY),
    no_effect("serverOnewaySemaphoreValue", INT, "256", _NETTY),
    no_effect("serverAsyncSemaphoreValue", INT, "64", _NETTY),
    honoured("serverChannelMaxIdleTimeSeconds", INT, "120", "s"),
    honoured("serverSocketSndBufSize", INT, "0", "B"),
    honoured("serverSocketRcvBufSize", INT, "0", "B"),
    no_effect(
        "writeBufferHighWaterMark",
        INT,
        "0",
        "connection_buffer_bytes_max limits the answers that a peer has not read",
        "B",
    ),
    no_effect(
        "writeBufferLowWaterMark",
        INT,
        "0",
        "connection_buffer_bytes_max limits the answers that a peer has not read",
        "B",
    ),
    honoured("serverSocketBacklog", INT, "1024"),
    no_effect("serverNettyWorkerGroupEnable", BOOLEAN, "true", _NETTY),
    no_effect("serverPooledByteBufAllocatorEnable", BOOLEAN, "true", _NETTY),
    no_effect("enableShutdownGracefully", BOOLEAN, "false", "a stop serves the requests that have arrived"),
    no_effect("shutdownWaitTimeSeconds", INT, "30", "a stop serves the requests that have arrived", "s"),
    no_effect("useEpollNativeSelector", BOOLEAN, "false", _NETTY),
)

CLIENT_KEYS: Final = (
    no_effect("clientWorkerThreads", INT, "4", _SERVERS),
    no_effect("clientCallbackExecutorThreads", INT, "<by processors>", _SERVERS),
    no_effect("clientOnewaySemaphoreValue", INT, "65535", _SERVERS),
    no_effect("clientAsyncSemaphoreValue", INT, "65535", _SERVERS),
    no_effect("connectTimeoutMillis", INT, "3000", _SERVERS, "ms"),
    no_effect("channelNotActiveInterval", LONG, "60000", _SERVERS, "ms"),
    no_effect("clientChannelMaxIdleTimeSeconds", INT, "120", _SERVERS, "s"),
    no_effect("clientSocketSndBufSize", INT, "0", _SERVERS, "B"),
    no_effect("clientSocketRcvBufSize", INT, "0", _SERVERS, "B"),
    no_effect("clientPooledByteBufAllocatorEnable", BOOLEAN, "false", _SERVERS),
    no_effect("clientCloseSocketIfTimeout", BOOLEAN, "true", _SERVERS),
    honoured("useTLS", BOOLEAN, "false"),
    no_effect("socksProxyConfig", TEXT, "{}", _SERVERS),
    no_effect(
        "writeBufferHighWaterMark",
        INT,
        "0",
        "connection_buffer_bytes_max limits the answers that a peer has not read",
        "B",
    ),
    no_effect(
        "writeBufferLowWaterMark",
        INT,
        "0",
        "connection_buffer_bytes_max limits the answers that a peer has not read",
        "B",
    ),
    no_effect("disableCallbackExecutor", BOOLEAN, "false", _SERVERS),
    no_effect("disableNettyWorkerGroup", BOOLEAN, "false", _SERVERS),
    no_effect("maxReconnectIntervalTimeSeconds", LONG, "60", _SERVERS, "s"),
    no_effect("enableReconnectForGoAway", BOOLEAN, "true", _SERVERS),
    no_effect("scanAvailableNameSrv", BOOLEAN, "true", _SERVERS),
)
