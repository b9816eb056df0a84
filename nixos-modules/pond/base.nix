# What the other files here share: faults, numbered lists, and values as a message shows them.
let
  inherit (builtins) elemAt foldl' genList length replaceStrings stringLength toJSON toString typeOf;
in rec {
  # Why a description is refused: the field, as in `ducks[3].mac`, and what is wrong with it, on one line.
  fault = field: problem: {inherit field problem;};

  # The first of several possible faults, null if there is none. Those after it are not evaluated, so each may rely on the ones before.
  first = foldl' (found: next:
    if found != null
    then found
    else next)
  null;

  imap = f: list: genList (i: f i (elemAt list i)) (length list);

  # `ducks`, 3 as `ducks[3]`.
  item = field: i: "${field}[${toString i}]";

  # `ports[1]`, `mac` as `ports[1].mac`. A name made of digits looks like a place in a list, as it does to the engine.
  member = field: name:
    if field == ""
    then oneLine name
    else if builtins.match "[0-9]+" name != null
    then "${field}[${name}]"
    else "${field}.${oneLine name}";

  oneLine = replaceStrings ["\n" "\r" "\t"] ["\\n" "\\r" "\\t"];

  shown = text:
    if stringLength text <= 100
    then toJSON text
    else "a text of ${toString (stringLength text)} bytes";

  # What a value of another type is.
  kind = value:
    {
      bool = "true or false";
      float = "a number with a fraction";
      int = "the number ${toString value}";
      lambda = "a function";
      list = "a list";
      null = "null";
      path = "a path, which Nix would copy into its store";
      set = "a set";
      string = "the text ${shown value}";
    }
    .${typeOf value};

  listed = values:
    if values == []
    then "none"
    else builtins.concatStringsSep ", " (map toString values);
}
