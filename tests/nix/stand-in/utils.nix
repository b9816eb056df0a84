# nixos/lib/utils.nix 0229f9ed9a89: one argument of an Exec line, quoted for systemd.
{lib}: rec {
  escapeSystemdExecArg = arg: let
    text =
      if builtins.isPath arg
      then "${arg}"
      else if builtins.isString arg || builtins.isInt arg || lib.isDerivation arg
      then toString arg
      else throw "escapeSystemdExecArg: neither text nor path";
  in
    lib.replaceStrings ["%" "$"] ["%%" "$$"] (builtins.toJSON text);
  escapeSystemdExecArgs = lib.concatMapStringsSep " " escapeSystemdExecArg;
  # nixos/lib/systemd-lib.nix, escapeSystemdPath, for paths without special characters.
  escapeSystemdPath = path: lib.replaceStrings ["/"] ["-"] (lib.removePrefix "/" path);
}
