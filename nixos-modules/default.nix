# Everything: a host, and ducks that keep Linux. Neither does anything until it is enabled.
{
  imports = [
    ./host
    ./duck
  ];
}
