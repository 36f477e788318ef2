"""Keys of Apache RocketMQ 5.3.3's NamesrvConfig and ControllerConfig."""

from __future__ import annotations

from typing import Final

from wheelmq.config.keys import Kind, honoured, no_effect, refused

BOOLEAN, INT, LONG, TEXT = Kind.BOOLEAN, Kind.INT, Kind.LONG, Kind.TEXT

_POOLS: Final = "one loop serves all requests: there are no thread pools"
_REPLICAS: Final = "belongs to a part of replication that WheelMQ does not have"
_CONTROLLER: Final = "belongs to the controller, which does not exist here"

NAMESRV_KEYS: Final = (
    honoured("listenPort", INT, "9876"),
    no_effect("rocketmqHome", TEXT, "<ROCKETMQ_HOME>", "there is no installation folder"),
    honoured("kvConfigPath", TEXT, "<home>/namesrv/kvConfig.json"),
    no_effect("configStorePath", TEXT, "<home>/namesrv/namesrv.properties", "the file is the one that -c names"),
    no_effect("productEnvName", TEXT, "center", "belongs to clusterTest"),
    refused("clusterTest", BOOLEAN, "false", "it forwards requests to another cluster: remove it"),
    honoured("orderMessageEnable", BOOLEAN, "false"),
    honoured("returnOrderTopicConfigToBroker", BOOLEAN, "true"),
    no_effect("clientRequestThreadPoolNums", INT, "8", _POOLS),
    no_effect("defaultThreadPoolNums", INT, "16", _POOLS),
    no_effect("clientRequestThreadPoolQueueCapacity", INT, "50000", _POOLS),
    no_effect("defaultThreadPoolQueueCapacity", INT, "10000", _POOLS),
    honoured("scanNotActiveBrokerInterval", LONG, "5000", "ms"),
    no_effect("unRegisterBrokerQueueCapacity", INT, "3000", _POOLS),
    no_effect("supportActingMaster", BOOLEAN, "false", _REPLICAS),
    honoured("enableAllTopicList", BOOLEAN, "true"),
    honoured("enableTopicList", BOOLEAN, "true"),
    no_effect("notifyMinBrokerIdChanged", BOOLEAN, "false", _REPLICAS),
    refused(
        "enableControllerInNamesrv", BOOLEAN, "false", "there is no controller: remove it, or run Apache's separately"
    ),
    honoured("needWaitForService", BOOLEAN, "false"),
    honoured("waitSecondsForService", INT, "45"),
    honoured("deleteTopicWithBrokerRegistration", BOOLEAN, "false"),
    no_effect(
        "configBlackList",
        TEXT,
        "configBlackList;configStorePath;kvConfigPath",
        "WheelMQ has its own list of settings that can change at run time",
    ),
)

CONTROLLER_KEYS: Final = (
    no_effect("rocketmqHome", TEXT, "<ROCKETMQ_HOME>", _CONTROLLER),
    no_effect("configStorePath", TEXT, "<home>/namesrv/namesrv.properties", _CONTROLLER),
    no_effect("controllerType", TEXT, "DLedger", _CONTROLLER),
    no_effect("scanNotActiveBrokerInterval", LONG, "5000", _CONTROLLER, "ms"),
    no_effect("controllerThreadPoolNums", INT, "16", _CONTROLLER),
    no_effect("controllerRequestThreadPoolQueueCapacity", INT, "50000", _CONTROLLER),
    no_effect("controllerDLegerGroup", TEXT, "", _CONTROLLER),
    no_effect("controllerDLegerPeers", TEXT, "", _CONTROLLER),
    no_effect("controllerDLegerSelfId", TEXT, "", _CONTROLLER),
    no_effect("mappedFileSize", INT, "1073741824", _CONTROLLER, "B"),
    no_effect("controllerStorePath", TEXT, "<home>/DledgerController", _CONTROLLER),
    no_effect("electMasterMaxRetryCount", INT, "3", _CONTROLLER),
    no_effect("enableElectUncleanMaster", BOOLEAN, "false", _CONTROLLER),
    no_effect("notifyBrokerRoleChanged", BOOLEAN, "true", _CONTROLLER),
    no_effect("scanInactiveMasterInterval", LONG, "5000", _CONTROLLER, "ms"),
    no_effect("metricsExporterType", TEXT, "DISABLE", _CONTROLLER),
    no_effect("metricsGrpcExporterTarget", TEXT, "", _CONTROLLER),
    no_effect("metricsGrpcExporterHeader", TEXT, "", _CONTROLLER),
    no_effect("metricGrpcExporterTimeOutInMills", LONG, "3000", _CONTROLLER, "ms"),
    no_effect("metricGrpcExporterIntervalInMills", LONG, "60000", _CONTROLLER, "ms"),
    no_effect("metricLoggingExporterIntervalInMills", LONG, "10000", _CONTROLLER, "ms"),
    no_effect("metricsPromExporterPort", INT, "5557", _CONTROLLER),
    no_effect("metricsPromExporterHost", TEXT, "", _CONTROLLER),
    no_effect("metricsLabel", TEXT, "", _CONTROLLER),
    no_effect("metricsInDelta", BOOLEAN, "false", _CONTROLLER),
    no_effect("configBlackList", TEXT, "configBlackList;configStorePath", _CONTROLLER),
    no_effect("processReadEvent", BOOLEAN, "false", _CONTROLLER),
)
"""Read when enableControllerInNamesrv is on."""
