// Dark, light, or as the system says.

const STORED = "holdfast-console-theme";

export function applyTheme(): void {
  const asked = new URLSearchParams(location.search).get("theme") ?? localStorage.getItem(STORED);
  if (asked === "dark" || asked === "light") document.documentElement.dataset.theme = asked;
}

export function switchTheme(): void {
  const root = document.documentElement;
  const dark =
    root.dataset.theme === "dark" ||
    (!root.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem(STORED, root.dataset.theme);
}
