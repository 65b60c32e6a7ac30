// Keys: "/" to search, "g" and a letter to go to a section, "?" for the list of keys, Escape to leave.

export function addKeys() {
  let going = 0;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const target = event.target;
    if (event.key === "Escape" && target instanceof HTMLElement) target.blur();
    if (target instanceof HTMLElement && target.matches("input, select, textarea")) return;
    if (event.key === "/") {
      focus(event, document.getElementById("search"));
    } else if (event.key === "?") {
      const keys = document.getElementById("keys");
      keys.open = !keys.open;
      focus(event, keys.querySelector("summary"));
    } else if (event.key === "g") {
      going = Date.now();
    } else if (Date.now() - going < 1500) {
      going = 0;
      document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`)?.click();
    }
  });
}

function focus(event, element) {
  if (!element) return;
  event.preventDefault();
  element.focus();
  element.select?.();
}
