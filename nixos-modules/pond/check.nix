# Whether the fields of a description, each of which has its form, fit each other. The first one that does not fit those before it is
# told; the order is the description's, ports before ducks. The same rules in the engine: engine/pond/src/check.rs.
description: let
  inherit (builtins) any elem elemAt filter head isList length listToAttrs substring toString unsafeDiscardStringContext;
  inherit (import ./base.nix) fault first imap item listed shown;
  form = import ./form.nix;

  given = name: set: set.${name} or null;
  several = name:
    if given name description == null
    then []
    else description.${name};
  ports = several "ports";
  ducks = several "ducks";

  when = condition: problem:
    if condition
    then problem
    else null;

  # Values that only one field may have: [{ field; value; }] to a function, field to value to a fault if an earlier field has the value.
  # Of several attributes with one name, listToAttrs keeps the first.
  unique = entries: let
    key = value: unsafeDiscardStringContext (toString value);
    owner = listToAttrs (map (entry: {
        name = key entry.value;
        value = entry.field;
      })
      entries);
  in
    field: value:
      when (owner.${key value} != field)
      (fault field "${toString value} is already ${owner.${key value}}; each needs one of its own");

  range = field: value: least: most:
    when (value < least || value > most)
    (fault field "${toString value} is out of range, expected ${toString least} to ${toString most}");

  name = field: value: most:
    when (!form.isName most value)
    (fault field "${shown value} is not a name: 1 to ${toString most} letters, digits, hyphens, underscores or dots");

  highestProcessor = 1023;

  path = field:
    when (given field description == "")
    (fault field "the path is empty; name a file or folder, or leave the field out");

  isolated = several "isolated";
  checkIsolated = let
    twice = unique (imap (i: value: {
        field = item "isolated" i;
        inherit value;
      })
      isolated);
    one = i: cpu: let
      field = item "isolated" i;
    in
      first [(range field cpu 0 highestProcessor) (twice field cpu)];
  in
    first (imap one isolated);

  checkVfioIds = let
    entries =
      imap (i: id: {
        field = item "vfio_ids" i;
        value = form.lower id;
      })
      (several "vfio_ids");
    twice = unique entries;
  in
    first (map (entry: twice entry.field entry.value) entries);

  pages = given "huge_pages" description;
  mount = given "mount" pages;
  checkHugePages = first [
    (when (!form.isPage pages.size)
      (fault "huge_pages.size" "${toString pages.size} is no size of a page, expected 2MiB or 1GiB"))
    (range "huge_pages.count" pages.count 1 1048576)
    (when (mount != null && builtins.match "/[A-Za-z0-9/._-]*" mount == null)
      (fault "huge_pages.mount" "${shown mount} is not an absolute path of letters, digits and ._-; let it begin with /"))
  ];

  # A port's values with the fields that have them.
  at = i: field: "${item "ports" i}.${field}";
  card = port:
    if given "pci" port != null
    then {
      name = "pci";
      value = form.lower port.pci;
    }
    else {
      name = "link";
      value = form.linkPci port.link;
    };
  hostAddress = port:
    if given "address" port != null
    then form.address port.address
    else if given "subnet" port != null
    then (form.subnet port.subnet).network + 1
    else null;
  entries = values: filter (entry: entry.value != null) (imap values ports);
  portEntries = field: read:
    entries (i: port: {
      field = at i field;
      value = read port;
    });
  portNames = unique (portEntries "name" (given "name"));
  links = unique (portEntries "link" (port: form.link port.link));
  cards = unique (entries (i: port: {
    field = at i (card port).name;
    value = (card port).value;
  }));
  lcores = unique (portEntries "lcore" (given "lcore"));
  addresses = unique (map (entry: entry // {value = form.dotted entry.value;}) (portEntries "address" hostAddress)
    ++ filter (entry: entry.value != null) (imap (i: duck: {
        field = "${item "ducks" i}.address";
        value = given "address" duck;
      })
      ducks));

  # Whether a device behind the port may have the address.
  addressFits = field: text: port: let
    subnet = form.subnet port.subnet;
    address = form.address text;
  in
    if given "subnet" port == null
    then fault field "${text} is given, but port ${port.name} has no subnet; give it one"
    else if address < subnet.network || address > subnet.broadcast
    then fault field "${text} is not in the subnet ${port.subnet} of port ${port.name}"
    else if address == subnet.network
    then fault field "${text} is the network address of ${port.subnet}; take another"
    else when (address == subnet.broadcast) (fault field "${text} is the broadcast address of ${port.subnet}; take another");

  checkPort = i: port: let
    own = name: given name port;
    subnet = form.subnet port.subnet;
    overlaps = j: let
      other = form.subnet (elemAt ports j).subnet;
    in
      given "subnet" (elemAt ports j) != null && other.network <= subnet.broadcast && subnet.network <= other.broadcast;
    before = filter overlaps (builtins.genList (j: j) i);
    firstBefore = elemAt ports (head before);
    host = form.dotted (hostAddress port);
    number = field: checks:
      if own field == null
      then null
      else first (checks (at i field) (own field));
  in
    first [
      (name (at i "name") port.name 16)
      (portNames (at i "name") port.name)
      (links (at i "link") (form.link port.link))
      (when (own "pci" != null && form.linkPci port.link != null && form.lower port.pci != form.linkPci port.link)
        (fault (at i "pci") "${port.pci} is not the card of the port's link, ${toString (form.linkPci port.link)}; leave one of them out"))
      (let
        own = card port;
      in
        if own.value == null
        then null
        else cards (at i own.name) own.value)
      (number "lcore" (field: lcore: [
        (range field lcore 0 highestProcessor)
        (lcores field lcore)
        (when (isList (given "isolated" description) && !elem lcore isolated)
          (fault field "processor ${toString lcore} is not one of the isolated ones (${listed isolated}); add it there"))
      ]))
      (when (own "subnet" != null && before != [])
        (fault (at i "subnet") "${toString port.subnet} overlaps ${at (head before) "subnet"}, ${firstBefore.subnet}; domains share no address"))
      (
        if hostAddress port == null
        then null
        else first [(addressFits (at i "address") host port) (addresses (at i "address") host)]
      )
      (number "mtu" (field: mtu: [(range field mtu 1500 9600)]))
    ];

  duckAt = i: field: "${item "ducks" i}.${field}";
  duckEntries = field: read:
    filter (entry: entry.value != null) (imap (i: duck: {
        field = duckAt i field;
        value = read (given field duck);
      })
      ducks);
  duckNames = unique (duckEntries "name" (name: name));
  macs = unique (duckEntries "mac" (mac:
    if mac == null
    then null
    else form.lower mac));
  portOf = listToAttrs (map (port: {
      name = unsafeDiscardStringContext port.name;
      value = port;
    })
    ports);
  portNamed = name: portOf.${unsafeDiscardStringContext name} or null;

  checkDuck = i: duck: let
    own = name: given name duck;
    at = duckAt i;
    port = portNamed duck.port;
    mac = form.lower duck.mac;
  in
    first [
      (name (at "name") duck.name 16)
      (duckNames (at "name") duck.name)
      (when (port == null)
        (fault (at "port") "there is no port ${shown duck.port}; the ports are ${listed (map (port: port.name) ports)}"))
      (
        if own "mac" == null
        then null
        else
          first [
            (when (!form.isUnicast duck.mac)
              (fault (at "mac") "${duck.mac} is not the address of a single device; write the one on the card"))
            (macs (at "mac") mac)
          ]
      )
      (
        if own "address" == null
        then null
        else
          first [
            (addressFits (at "address") duck.address port)
            (addresses (at "address") duck.address)
            (when (own "mac" == null && substring 0 4 port.link != "udp:")
              (fault (at "mac") "is missing, and without it the boot service cannot give the duck its address ${duck.address}; `duckpond ducks adopt` tells it"))
          ]
      )
      (when (own "memory" != null && form.isZero duck.memory)
        (fault (at "memory") "a duck without memory holds nothing; leave the field out if it is unknown"))
      (when (own "link" != null) (range (at "link") duck.link 10 65535))
    ];

  checkEmpty = i: port:
    when (!any (duck: duck.port == port.name) ducks)
    (fault (item "ports" i) "no duck is on port ${port.name}; add one or remove the port");
in
  first [
    (name "name" description.name 64)
    (path "model")
    (path "key")
    (path "kernels")
    (path "netboot")
    checkIsolated
    checkVfioIds
    (
      if pages == null
      then null
      else checkHugePages
    )
    (when (length ports == 0) (fault "ports" "a pond needs at least one port; add one"))
    (first (imap checkPort ports))
    (first (imap checkDuck ducks))
    (first (imap checkEmpty ports))
  ]
