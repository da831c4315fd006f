# The vendor's paths, unless the image or the site has set them
for file in @files@; do
  [ -z "${@unless@:-}" ] && [ -r "$file" ] || continue
  flags=$-; set +u; . "$file" || true; case $flags in *u*) set -u ;; esac
done
