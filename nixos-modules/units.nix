# The services as systemd runs them, once for NixOS and for the Debian package: sections as attribute sets, of which the modules make
# NixOS's units and packaging/deb/units.nix makes files. What differs between the two (paths, arguments) is an argument; how tightly a
# service is confined is not.
{lib}: let
  # What no service here needs.
  confined = {
    CapabilityBoundingSet = "";
    NoNewPrivileges = true;
    ProtectSystem = "strict";
    ProtectHome = true;
    PrivateTmp = true;
    PrivateMounts = true;
    ProtectClock = true;
    ProtectControlGroups = true;
    ProtectHostname = true;
    ProtectKernelLogs = true;
    ProtectKernelModules = true;
    ProtectKernelTunables = true;
    ProtectProc = "invisible";
    LockPersonality = true;
    MemoryDenyWriteExecute = true;
    RestrictNamespaces = true;
    RestrictRealtime = true;
    RestrictSUIDSGID = true;
    RemoveIPC = true;
    SystemCallArchitectures = "native";
    SystemCallFilter = [
      "@system-service"
      "~@privileged"
    ];
    SystemCallErrorNumber = "EPERM";
    UMask = "0077";
  };
  # Frames are sent and received without the kernel's network stack; weights are locked; threads that serve a port come before others.
  frames = [
    "CAP_NET_RAW"
    "CAP_IPC_LOCK"
    "CAP_SYS_NICE"
  ];
in {
  # The engine.
  #   start      its command line
  #   stop       kill, by its path
  #   ports      whether it has ports of its own, so that frames and locked memory are its business
  #   vfio, gpu  whether it may use cards of vfio-pci, and NVIDIA's devices
  #   watchdog   seconds after which a silent engine is ended
  engine = {
    start,
    kill,
    ports,
    vfio,
    gpu,
    watchdog,
  }: {
    description = "Engine of a pond: runs a language model on this host and its ducks";
    wants = ["network-online.target"];
    after = ["network-online.target"];
    # It is started again and again: ducks and their weights outlive it.
    unitConfig.StartLimitIntervalSec = 0;
    serviceConfig =
      confined
      // {
        Type = "notify";
        NotifyAccess = "main";
        ExecStart = start;
        # API keys are read again.
        ExecReload = "${kill} -HUP $MAINPID";
        Restart = "on-failure";
        RestartSec = 5;
        # Extended by the engine as long as loading comes on.
        TimeoutStartSec = "10min";
        # Answers under way may end.
        TimeoutStopSec = "2min";
        WatchdogSec = watchdog;
        User = "duckpond";
        Group = "duckpond";
        WorkingDirectory = "%S/duckpond";
        StateDirectory = "duckpond";
        StateDirectoryMode = "0750";
        CacheDirectory = "duckpond";
        # The lock and the control socket: `duckpond ducks` asks there.
        RuntimeDirectory = "duckpond";
        RuntimeDirectoryMode = "0700";
        LimitMEMLOCK = "infinity";
        LimitNOFILE = 65536;
        OOMScoreAdjust = -500;
        RestrictAddressFamilies =
          [
            "AF_INET"
            "AF_INET6"
            "AF_UNIX"
            "AF_NETLINK"
          ]
          ++ lib.optional ports "AF_PACKET";
      }
      // (
        if ports
        then {
          AmbientCapabilities = frames;
          CapabilityBoundingSet = frames;
          # @privileged holds nothing that frames need; sched_setaffinity and mlock are in @system-service.
        }
        else {
          PrivateUsers = true;
        }
      )
      // (
        if vfio || gpu
        then {
          PrivateDevices = false;
          DevicePolicy = "closed";
          DeviceAllow =
            lib.optionals vfio [
              "/dev/vfio/vfio rw"
              "char-vfio rw"
            ]
            ++ lib.optionals gpu [
              "char-nvidia* rw"
              "/dev/nvidiactl rw"
              "/dev/nvidia0 rw"
              "/dev/nvidia-uvm rw"
            ];
        }
        else {
          PrivateDevices = true;
          DevicePolicy = "closed";
        }
      );
  };

  # Network cards that are handed to the engine: one program, run once before the network is looked at.
  #   start  the program and the cards' addresses
  vfio = {
    start,
    stop,
  }: {
    description = "Binds the pond's network cards to vfio-pci";
    before = [
      "network-pre.target"
      "duckpond.service"
      "shutdown.target"
    ];
    wants = ["network-pre.target"];
    after = [
      "local-fs.target"
      "systemd-modules-load.service"
      "systemd-udevd.service"
      # It may empty /tmp, where systemd prepares a service's own /dev.
      "systemd-tmpfiles-setup.service"
    ];
    unitConfig = {
      DefaultDependencies = false;
      ConditionPathIsDirectory = "/sys/bus/pci";
      Conflicts = "shutdown.target";
    };
    serviceConfig =
      confined
      // {
        Type = "oneshot";
        RemainAfterExit = true;
        ExecStart = start;
        ExecStop = stop;
        # It writes below /sys as root and loads a module; nothing else.
        ProtectKernelTunables = false;
        ProtectKernelModules = false;
        CapabilityBoundingSet = [
          "CAP_SYS_MODULE"
          "CAP_SYS_ADMIN"
          "CAP_DAC_OVERRIDE"
        ];
        SystemCallFilter = [
          "@system-service"
          "@module"
        ];
        PrivateNetwork = true;
        # It runs before there is a /tmp of its own to be had.
        PrivateTmp = false;
        RestrictAddressFamilies = "AF_UNIX";
        PrivateDevices = true;
        IPAddressDeny = "any";
      };
  };

  # A duck that keeps Linux.
  #   start  its command line
  duck = {start}: {
    description = "Duck of a pond: holds experts' weights and multiplies them for a host";
    after = ["network-pre.target"];
    unitConfig.StartLimitIntervalSec = 0;
    serviceConfig =
      confined
      // {
        Type = "notify";
        NotifyAccess = "main";
        ExecStart = start;
        Restart = "always";
        RestartSec = 1;
        # Locking many gigabytes takes a while before the duck is ready.
        TimeoutStartSec = "5min";
        WatchdogSec = 10;
        DynamicUser = true;
        AmbientCapabilities = frames;
        CapabilityBoundingSet = frames;
        LimitMEMLOCK = "infinity";
        Nice = -10;
        OOMScoreAdjust = -500;
        PrivateDevices = true;
        DevicePolicy = "closed";
        RestrictAddressFamilies = [
          "AF_PACKET"
          "AF_INET"
          "AF_INET6"
          "AF_UNIX"
          "AF_NETLINK"
        ];
      };
  };
}
