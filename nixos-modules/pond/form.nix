# Values with a form of their own: addresses, links, sizes. Beside each form stands what else is needed of such a value: addresses as
# numbers, for what Nix has no operators, and one spelling for those that have several.
#
# The engine's own forms are in engine/pond/src/value.rs; tests/nix holds these to them.
let
  inherit (builtins) elemAt fromJSON isString match stringLength substring;

  # Regular expressions recurse in Nix, so nothing long is given to one.
  matches = most: pattern: text:
    if stringLength text <= most
    then match pattern text
    else null;
  fits = most: pattern: text: matches most pattern text != null;

  hex = count: "[0-9a-fA-F]{${toString count}}";
  octet = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])";
  quad = "${octet}\\.${octet}\\.${octet}\\.${octet}";
  pci = "${hex 4}:${hex 2}:[01][0-9a-fA-F]\\.[0-7]";

  # Without the zeros in front, which JSON has not.
  significant = digits: elemAt (match "0*([0-9]+)" digits) 0;
  number = digits: fromJSON (significant digits);

  two = exponent:
    if exponent == 0
    then 1
    else 2 * two (exponent - 1);

  sum = octets: builtins.foldl' (all: text: all * 256 + number text) 0 octets;

  # The most that a size may have in front of a unit, so that its bytes are a 64-bit number; Nix itself counts to half of that.
  sizes = {
    "" = "18446744073709551615";
    B = "18446744073709551615";
    KiB = "18014398509481983";
    MiB = "17592186044415";
    GiB = "17179869183";
    TiB = "16777215";
  };

  # Texts of digits without zeros in front.
  atMost = most: digits:
    stringLength digits < stringLength most || (stringLength digits == stringLength most && digits <= most);

  # The parts of a size, null if it is none.
  size = text: let
    parts = matches 256 "([0-9]+) *(TiB|GiB|MiB|KiB|B|)" text;
    digits = significant (elemAt parts 0);
    unit = elemAt parts 1;
  in
    if parts != null && atMost sizes.${unit} digits
    then {inherit digits unit;}
    else null;
in rec {
  # Lower-case letters for what may have either.
  lower = builtins.replaceStrings ["A" "B" "C" "D" "E" "F"] ["a" "b" "c" "d" "e" "f"];

  isName = most: fits most "[A-Za-z0-9_.-]+";
  isMac = fits 17 "${hex 2}(:${hex 2}){5}";
  isPci = fits 12 pci;
  isVfioId = fits 9 "${hex 4}:${hex 4}";
  isPublicKey = fits 64 (hex 64);
  # Of the last digit, two bits are beyond the hash; they are zero.
  isNarHash = fits 51 "sha256-[A-Za-z0-9+/]{42}[AEIMQUYcgkosw048]=";
  isAddress = fits 15 quad;
  isSize = text: size text != null;

  isLink = text: let
    parts = matches 256 "(eth|udp|dpdk):([!-~]+)" text;
    kind = elemAt parts 0;
    target = elemAt parts 1;
  in
    parts
    != null
    && (
      if kind == "eth"
      then fits 15 "[^/:]+" target && target != "." && target != ".."
      else kind == "udp" || isPci target || substring 0 4 target == "net_"
    );

  # The network and the prefix of a subnet, and where it ends; null if it is none.
  subnet = text: let
    parts = matches 18 "${quad}/([0-9]{1,2})" text;
    prefix = number (elemAt parts 4);
    block = two (32 - prefix);
    network = sum (map (elemAt parts) [0 1 2 3]);
    start = number (elemAt parts 0);
  in
    # Room for a host and a duck at least; 0 and groups are no devices'.
    if parts != null && prefix >= 8 && prefix <= 30 && network / block * block == network && start > 0 && start < 224
    then {
      inherit network prefix;
      broadcast = network + block - 1;
    }
    else null;
  isSubnet = text: subnet text != null;

  address = text: sum (match quad text);

  # The other way round.
  dotted = address: let
    digit = exponent: address / two exponent - address / two exponent / 256 * 256;
  in
    builtins.concatStringsSep "." (map (exponent: toString (digit exponent)) [24 16 8 0]);

  # The PCI address in a link that has one.
  linkPci = link: let
    target = substring 5 256 link;
  in
    if substring 0 5 link == "dpdk:" && isPci target
    then lower target
    else null;

  # One spelling for a link.
  link = text:
    if linkPci text != null
    then "dpdk:${linkPci text}"
    else text;

  # Bytes of a size as digits in front of a unit, both as a text; `zero` and the sizes of pages can be told so.
  isZero = value:
    if isString value
    then (size value).digits == "0"
    else value == 0;
  isPage = value: let
    parts = size value;
  in
    if isString value
    then
      builtins.elem "${parts.digits}${parts.unit}" [
        "2MiB"
        "2048KiB"
        "2097152B"
        "2097152"
        "1GiB"
        "1024MiB"
        "1048576KiB"
        "1073741824B"
        "1073741824"
      ]
    else value == 2097152 || value == 1073741824;

  # Two hexadecimal digits.
  byte = n: let
    digit = i: substring i 1 "0123456789abcdef";
  in "${digit (n / 16)}${digit (n - n / 16 * 16)}";

  # Whether a single device may have this hardware address: neither a group's nor all zeros.
  isUnicast = mac: match ".[02468aAcCeE].*" mac != null && mac != "00:00:00:00:00:00";
}
