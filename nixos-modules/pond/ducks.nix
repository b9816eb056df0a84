# A list of the ducks behind one port.
#
# Hardware addresses, until `macs` gives the real ones, are 00:00:5e:00:53:NN with the duck's number as NN: the range that RFC 7042 (section 2.1.2)
# sets aside for documentation. No card has one of them, so a description that was not filled in yet boots nobody's machine, and
# no two of a pond's ducks get the same.
{
  # The port's name and its subnet, as in its own row.
  port,
  subnet,
  # The number of the first duck, from 1 in a pond; the next port goes on where this one ended.
  start,
  count ? 8,
  # The last octet of the first duck's address.
  first ? 11,
  prefix ? "duck-",
  # The ducks' hardware addresses in order, as `duckpond ducks adopt` tells them.
  macs ? null,
  # For every duck: memory and Mbit/s that it is expected to have.
  memory ? null,
  link ? null,
}: let
  inherit (builtins) elemAt genList isString length toString;
  inherit (import ./base.nix) shown;
  form = import ./form.nix;

  known =
    if isString subnet
    then form.subnet subnet
    else null;
  network =
    if known == null
    then
      throw "subnet: ${
        if isString subnet
        then shown subnet
        else builtins.typeOf subnet
      } is not a subnet such as 10.21.1.0/24; write the one of port ${port}"
    else known.network;

  documentation = number:
    if number < 256
    then "00:00:5e:00:53:${form.byte number}"
    else throw "start: there is no documentation address for duck ${toString number}, only for numbers up to 255; give macs";

  duck = i: let
    number = start + i;
    digits = "${
      if number < 10
      then "0"
      else ""
    }${toString number}";
    fields = {
      name = "${prefix}${digits}";
      inherit port memory link;
      mac =
        if macs == null
        then documentation number
        else elemAt macs i;
      address = form.dotted (network + first + i);
    };
  in
    removeAttrs fields (builtins.filter (name: fields.${name} == null) (builtins.attrNames fields));
in
  if macs != null && length macs != count
  then throw "macs: there are ${toString (length macs)}, but port ${port} has ${toString count} ducks; give one for each, or set count"
  else genList duck count
