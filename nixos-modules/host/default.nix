# The host of a pond.
{
  imports = [
    ./options.nix
    ./asserts.nix
    ./description.nix
    ./service.nix
    ./kernel.nix
    ./cards.nix
    ./secrets.nix
    ./firmware.nix
    ./observe.nix
  ];
}
